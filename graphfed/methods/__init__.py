"""The methods: one file each, beside its paper, and the registry that names them."""
