"""Overhead of the SDK over plain httpx."""
