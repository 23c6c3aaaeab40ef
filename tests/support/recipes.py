"""Recipes of other systems, with the options that change the program of a step."""

from pybeam import compat

RECIPES = {
    "ctranslate2": compat.ctranslate2.beam_search(3, num_hypotheses=3, max_decoding_length=12),
    "fairseq": compat.fairseq.beam_search(3, nbest=3, max_len_a=2, unkpen=1, unk_id=3, pad_id=1),
    "opennmt": compat.opennmt.beam_search(3, n_best=3, max_length=9),
    "huggingface": compat.huggingface.beam_search(
        3, forced_bos_token_id=7, forced_eos=True, exponential_decay_length_penalty=(2, 1.1)
    ),
}
