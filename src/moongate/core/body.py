"""A JSON request body that is kept byte for byte, with its top-level members as raw slices."""
