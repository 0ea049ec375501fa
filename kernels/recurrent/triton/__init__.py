"""Recurrent layers in Triton: a kernel a step (`fused`), or all steps in one launch (`sequence`)."""
