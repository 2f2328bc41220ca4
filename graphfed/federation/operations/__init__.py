"""The operations of `Federation`, one module for each concern.

A function here implements the method of `Federation` that its docstring names, where its arguments and its
result are described. It takes the `Delivery` of the run as its first argument.
"""
