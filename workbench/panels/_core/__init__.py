"""The base of every panel: live updates, pictures that stay, colours, SVG."""
