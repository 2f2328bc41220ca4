"""The operations of `Federation`, one module for each concern.

A function here implements the method of `Federation` that its docstring names. Shapes carry the index h of a
worker: K_h clients, P_h clients that take part, M_h rows; U is the number of ids of a route.
"""
