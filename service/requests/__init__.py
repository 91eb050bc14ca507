"""The request pipeline: a body is parsed, validated and made into a job."""
