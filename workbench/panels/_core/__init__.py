"""What every panel stands on: live updates, pictures that stay, colours, SVG."""
