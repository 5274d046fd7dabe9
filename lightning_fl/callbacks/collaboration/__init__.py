"""Who collaborates with whom: callbacks that set the collaboration."""
