.PHONY: check test quickstart
check: ; scripts/check
test: ; scripts/test
quickstart: ; scripts/quickstart
