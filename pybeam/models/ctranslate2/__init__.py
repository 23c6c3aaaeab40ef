"""Models that CTranslate2's converters have written: `model.bin` is read as it is."""
