"""What the assembler made of a kernel, held against its PTX."""
