"""A plug-in of graphfed: the method `fedavgm` and the data set `rings`."""
