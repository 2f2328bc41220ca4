"""What `Federation` does, one module for each concern. Each operation is a function of the `Delivery` that
carries its messages."""
