"""The methods that the package ships; the tests of the laws register some of their own beside them."""

from graphfed.methods.registry import METHODS

SHIPPED = tuple(METHODS.own)
