"""Finds a Python with Hugging Face's `tokenizers`, for the scripts in this folder."""
import os
import subprocess
import sys


def import_tokenizers(root):
    """The module. A Python without it begins anew with one that has it: that of tools/install-peers, or those that
    CAIRN_TEST_TORCH2 names, with : between. Where none has, it exits 77, which meson counts as skipped."""
    os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")  # before the import
    try:
        import tokenizers
        return tokenizers
    except ImportError:
        peer = os.path.join(root, "build-check/peers/torch2/bin/python")
        others = os.environ.get("CAIRN_TEST_TORCH2", peer).split(":")
        for python in [] if os.environ.get("CAIRN_TEST_AGAIN") else others:
            if os.path.exists(python) and subprocess.run([python, "-c", "import tokenizers"], capture_output=True,
                                                         check=False).returncode == 0:
                os.environ["CAIRN_TEST_AGAIN"] = "1"
                os.execv(python, [python, *sys.argv])
        print("skipped: no Python here has tokenizers (tools/install-peers installs it)")
        sys.exit(77)


def bert_tokenizer(tokenizers, vocabulary, lower=True, strip=None, chinese=True):
    """What transformers' BertTokenizerFast is made of, for a path or {token: id}."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    ids = vocabulary if isinstance(vocabulary, dict) else models.WordPiece.read_file(vocabulary)
    t = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=chinese, strip_accents=strip,
                                              lowercase=lower)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece(prefix="##")
    t.add_special_tokens([AddedToken(s, special=True) for s in ("[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]")])
    t.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])])
    return t
