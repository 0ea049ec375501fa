"""The REST service and the command line. Reaches everything else through `selector`."""
