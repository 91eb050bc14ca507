"""What can be asked of a model beside samples: the noise behind data, their log-density, Jacobians on the way."""
