"""Compiles the pieces of C in the docs and in the comments of public headers.

usage: snippets.py source-root c-compiler...

A piece is compiled as the body of a function; functions in it are moved outside. Omissions ("...") become empty, and
remarks after a line in a header's comment are removed. Surrounding declarations are in DECLARED, or in OTHERS if a page
uses a name differently."""
import glob
import os
import re
import subprocess
import sys

import sources

DECLARED = """
#include <cairn/cairn.h>
#include <cairn/interop_cuda.h>
#include <math.h>
#include <string.h>
#include "bert/config.h"
#include "bert/model.h"
#define CHECK CAIRN_CHECK
#define LOSS(id, opt) amp_loss_options(.loss_id = id, .num_optimizers = 1, .optimizers = &opt)
enum { BATCH = 32, PARAMS = 4, blocks = 1 };
struct trainer { cairn_optimizer *opt; cairn_module *model; amp_context *amp; cairn_tensor *x, *y, *loss; } trainer;
typedef void *cudaStream_t;
enum { cudaSuccess };
extern amp_context *amp; extern amp_scaler *scaler; extern struct amp_options level; extern ddp_context *net;
extern cairn_averages *averages;
extern cairn_data_parallel *replicas; extern cairn_dataset *dataset, *texts, *examples; extern cairn_env *env;
extern cairn_graph *graph; extern cairn_grid *grid; extern cairn_group *group, *g; extern cairn_loader *loader;
extern cairn_metric *accuracy; extern cairn_module *model, *stage, *bert, *pooler, *D, *G, *layers[2];
extern cairn_optimizer *optimizer, *opt, *adamw, *adam, *sgd, *opt_d, *opt_g; extern cairn_param_set *set;
extern cairn_picture_folder *folder; extern cairn_pipeline *pipeline; extern cairn_progress *progress;
extern cairn_sampler *sampler; extern cairn_state *state; extern struct cairn_adam_options hyper;
extern cairn_tensor *x, *y, *loss, *targets, *labels, *real, *fake, *noise, *ones, *zeros;
extern int64_t batch[BATCH], epochs, total, n, rows[BATCH], ids[8], length, queue_length;
extern int argc, rank, ranks, size, count, micro_batches, steps, stepped, reduced, due, first, last, r, B, T, H;
extern int tokenizer; extern char **argv; extern double best, rate, validation_loss, mean; extern float *grads;
extern cudaStream_t stream;
extern struct cairn_custom_op op;
void train_on(); void augment(); int next_batch(cairn_tensor **x, cairn_tensor **y); void my_adamw();
void my_backward(); void swish(); int cudaGetLastError(void);
cairn_tensor *inputs_of(const int64_t *batch, int64_t n), *targets_of(const int64_t *batch, int64_t n);
cairn_module *make_net(cairn_env *env);
"""
# {page: [(words of the piece, declarations)]}
OTHERS = {
    "docs/data.md": [("load_latest", "int64_t step;")],
    "docs/ddp.md": [("x[m]", "cairn_tensor *x[8], *y[8];")],
    "docs/gpu.md": [("forward_cuda", "cairn_status (*backward)();")],
    "docs/observing.md": [("", "int64_t step;")],
    "docs/operations.md": [("", "int D, H;")],
    "docs/pipelines.md": [("grid", "cairn_tensor *loss_of(void *, cairn_tensor *, cairn_tensor *, int);")],
    "docs/weights.md": [("", "cairn_module *net;")],
    "include/cairn/data_parallel.h": [("", "cairn_module *net;")],
    "include/cairn/loader.h": [("", "const struct cairn_batch *batch;")],
    "include/cairn/metrics.h": [("", "cairn_metric *loss;")],
    "include/cairn/muon.h": [("rules", "extern struct cairn_muon_options muon;")],
    "include/cairn/npy.h": [("", "cairn_npy *x;")],
    "include/cairn/observe.h": [("", "int64_t step;")],
    "include/cairn/pipeline.h": [("", "cairn_tensor *(*loss)(void *, cairn_tensor *, cairn_tensor *, int);")],
    "include/cairn/state.h": [("", "int64_t step;")],
    "include/cairn/tensor.h": [("", "cairn_tensor *x[8], *y[8];")],
    "include/cairn/weights.h": [("", "cairn_module *net;")],
}
FUNCTION = re.compile(r"^static [^;={]*\) \{(?:[^\n]*\}\n|\n.*?^\}\n)", re.M | re.S)
FLAGS = ["-std=c11", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused", "-Wno-strict-prototypes",
         "-Wno-uninitialized", "-Wno-empty-body"]


def of_page(text):
    return re.findall(r"^```c\n(.*?)^```$", text, re.M | re.S)


def of_header(text):
    """Indented blocks of comments that have a semicolon."""
    for comment in re.findall(r"/\*(.*?)\*/", text, re.S):
        lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in comment.strip().split("\n")]
        for block in re.findall(r"(?<=\n\n)    \S.*\n(?:    .*\n)*(?=\n)", "\n".join(["", "", *lines, "", ""])):
            if ";" in block:
                yield re.sub(r"(?m)([;{]) {2,}(?!/[*/]).*$", r"\1", re.sub(r"(?m)^    ", "", block))


def program(piece, others):
    """C of a piece."""
    if "int main(" in piece:
        return piece
    piece = piece.replace("for (...)", "for (;;)").replace("...", ";")
    piece = re.sub(r"<<<.*?>>>", "", piece)
    functions = "".join(FUNCTION.findall(piece))
    return f"{DECLARED}\n{functions}\nvoid piece(void) {{\n{others}\n{{\n{FUNCTION.sub('', piece)}\n}}\n}}\n"


def pieces(root):
    """(page, number from 1, C)"""
    for path in ["README.md", *sorted(glob.glob("docs/*.md", root_dir=root)),
                 *sorted(glob.glob("include/cairn/*.h", root_dir=root))]:
        text = sources.read(root, path)
        for number, piece in enumerate(of_page(text) if path.endswith(".md") else of_header(text), 1):
            others = "".join(names for words, names in OTHERS.get(path, []) if words in piece)
            yield path, number, program(piece, others)


def complaints(root, compiler):
    found, count = [], 0
    include = ["-I", os.path.join(root, "include"), "-I", os.path.join(root, "examples")]
    for path, number, text in pieces(root):
        got = subprocess.run([*compiler, *FLAGS, *include, "-x", "c", "-"], input=text, capture_output=True, text=True,
                             check=False)
        count += 1
        if got.returncode:
            found.append(f"{path}, piece {number}:\n{got.stderr}")
    print(f"{count} pieces were compiled")
    return found


def check_itself(root, compiler):
    for piece, good in ("CAIRN_CHECK(cairn_step(optimizer));", True), ("CAIRN_CHECK(cairn_stop(optimizer));", False), \
            ("static void f(void) { ... }\n...\nfor (...) f();\n", True), ("amp_options(.opt_levle = AMP_O1);", False):
        got = subprocess.run([*compiler, *FLAGS, "-I", os.path.join(root, "include"), "-I",
                              os.path.join(root, "examples"), "-x", "c", "-"], input=program(piece, ""),
                             capture_output=True, text=True, check=False)
        assert (got.returncode == 0) == good, (piece, got.stderr)
    header = "/* Text;\n *\n *     a(b);     (why)\n *     c();\n *\n * and. */"
    assert list(of_header(header)) == ["a(b);\nc();\n"], list(of_header(header))


if __name__ == "__main__":
    check_itself(sys.argv[1], sys.argv[2:])
    sources.finish(complaints(sys.argv[1], sys.argv[2:]), "pieces of C")
