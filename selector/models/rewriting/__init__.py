"""In-place replacement of a model's layers by selected implementations, and its reversal."""
