"""Work that takes long: an attack run, a sweep, and the workers that share it."""
