"""Code generation: `generate.generate` for the compiler, `source` for the runtime, which must not load the rest."""
