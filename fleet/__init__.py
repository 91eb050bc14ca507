"""Scaling past one machine: bulk jobs, and replicas on Ray Serve; a layer above `service`.

The service never imports this package, and importing it does not import Ray.
"""
