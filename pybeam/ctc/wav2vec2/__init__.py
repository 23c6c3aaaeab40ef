"""Wav2Vec2 with a CTC layer: sound becomes the log-probabilities of tokens, frame by frame."""
