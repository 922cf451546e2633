"""A page on which a person talks with the model; its files are in `static`."""
