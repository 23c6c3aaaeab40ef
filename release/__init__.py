"""Scripts that build, test and check a release; `make help` names their targets."""
