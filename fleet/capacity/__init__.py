"""Capacity: how many replicas a load needs, from a service's measured speed and a simulation of its own scheduler."""
