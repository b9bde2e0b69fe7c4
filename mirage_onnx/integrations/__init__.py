"""Hooks into other people's pipelines; each imports the library that it is for, which we do not depend on."""
