"""The methods, each in a file or package of its own, and the registry that names them."""
