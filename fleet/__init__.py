"""Past one machine: bulk jobs, replicas on Ray Serve, capacity plans; a layer above `service`.

Nothing here is imported by the service, and importing this package imports no Ray.
"""
