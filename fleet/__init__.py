"""Scaling past one machine: bulk jobs, replicas on Ray Serve, and capacity plans; a layer above `service`.

The service never imports this package, and importing it does not import Ray.
"""
