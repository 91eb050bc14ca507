"""Past one machine: what balancers add, how bulk jobs scale, and whether plans hold."""
