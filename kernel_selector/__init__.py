"""The installed home of `kernels`, `db`, `service` and the migrations.

Our code imports them as `kernel_selector.kernels`, ... so that Hugging Face's package `kernels` and
the Alembic distribution keep their names. In a checkout the entries beside this file are links to the
folders at the root; in the wheel they are the folders themselves.
"""
