"""Requests: bodies are parsed, validated and made into jobs by one pipeline."""
