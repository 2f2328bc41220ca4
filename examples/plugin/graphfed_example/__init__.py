"""A plug-in of graphfed: the rule and method `fedavgm` and the data set `rings`."""
