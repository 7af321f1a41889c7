"""From samples of a GPU to the joules of a cell. Importing it loads neither numpy nor polars."""
