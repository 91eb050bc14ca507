"""Operations on a model other than sampling, one file each: the request, the job, the response and their examples."""
