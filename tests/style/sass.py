"""Reads the machine code of the GPU module: kernels that pass values on unchanged must not contain instructions that
replace a NaN by the canonical one, since the CPU keeps a NaN's bits.

usage: sass.py MAPS_H NVCC MODULE...        exits 77 where there is no cuobjdump with its nvdisasm; tools/install-peers
                                            gets them

ptxas makes of a choice between a number and a constant a maximum (FMNMX), of -x a subtraction from 0 (FADD), and both
return one NaN for all. Conversions between f32 and halves do, too: kernel.cuh chooses the CPU's NaN beside them, which
is seen by their predicates, or by as many selects. What a kernel computes of scalars, by f64, is not its elements'.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import sources

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Kernels that keep bits, by a function or type in their mangled names, and maps that do, by their names in maps.h.
KEEPING = ("relu_of relu_slope round_to fill_with cast_list copy_list clamp_list check_list copy_packs copy_any "
           "copy_transposed").split()
KEEPING_MAPS = "NEG ABS RELU CLAMP MAXIMUM WHERE RELU_BACKWARD CLAMP_BACKWARD MASKED UNMASKED".split()

# Whose ptxas makes a subtraction of -x, however its bits are changed, so that NaNs lose theirs (docs/gpu.md).
LOSING = {"sm_100"}

CHIP = re.compile(r"code for (sm_\d+)")
FUNCTION = re.compile(r"Function : (\S+)")
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+ )?\s*([A-Z][A-Z0-9_.]*)\s*([^;]*);")
ARITHMETIC = re.compile(r"(?:FMNMX|FADD|FMUL|FFMA|FSWZADD|HMNMX2|HADD2|HMUL2|HFMA2)(?:\.|$)")
CONVERSION = re.compile(r"HADD2\.F32$|F2FP?\.(?:F16|BF16)(?:\.F32|_V2)?(?:\.|$)|F2F\.F32\.(?:F16|BF16)$")
SELECT = re.compile(r"(?:F?SEL|IMNMX|VIMNMX)(?:\.|$)")
ZERO = re.compile(r"-?RZ$")


def find_tools():
    """The folder of cuobjdump, which wants nvdisasm on its PATH; None where one of them is missing."""
    nvcc = os.path.realpath(shutil.which(sys.argv[2]) or sys.argv[2])
    folders = [os.path.dirname(nvcc), "/usr/local/cuda/bin"]
    for packages in (sysconfig.get_paths()["purelib"], ROOT + "/build-check/peers/torch2/lib/python*/site-packages"):
        folders += sorted(glob.glob(packages + "/nvidia/*/bin"))
    folders += [os.path.dirname(path) for path in [shutil.which("cuobjdump")] if path]
    return next((f for f in folders if all(os.access(os.path.join(f, n), os.X_OK) for n in ("cuobjdump", "nvdisasm"))),
                None)


def kernels(text):
    """(name, [(predicated, opcode, operands)]) of each kernel in cuobjdump's listing."""
    found, loses = [], False
    for line in text.splitlines():
        chip, function, instruction = CHIP.search(line), FUNCTION.search(line), INSTRUCTION.search(line)
        if chip:
            loses = chip[1] in LOSING
        elif function and not loses:
            found.append((function[1], []))
        elif instruction and found and not loses:
            found[-1][1].append((bool(instruction[1]), instruction[2], instruction[3]))
    return found


def kept_as(name, maps):
    """What of the lists above a kernel is; None where its values are computed."""
    number = re.search(r"map_packsIL\d+cairn__map_fn(\d+)E", name)
    if number:
        return maps[int(number[1])] if maps[int(number[1])] in KEEPING_MAPS else None
    return next((part for part in KEEPING if re.search(rf"\d{part}[EIv]", name)), None)


def is_constant(operands):
    """HFMA2 and the like, of zeros alone, is how a constant comes into a register."""
    read = [word.strip() for word in operands.split(",")[1:]]
    return bool(read) and all(ZERO.match(word.split(".")[0]) or not re.search(r"\bR\d", word) for word in read)


def complaints(name, code):
    bare, selects = 0, sum(bool(SELECT.match(opcode)) for _, opcode, _ in code)
    for predicated, opcode, operands in code:
        if CONVERSION.match(opcode):
            bare += not predicated
        elif ARITHMETIC.match(opcode) and not is_constant(operands):
            yield f"{name}: {opcode} {operands.strip()}"
    if bare > selects:
        yield f"{name}: {bare} conversions of halves whose NaN is not replaced, with {selects} selects"


def disassembled(tools, path):
    env = {**os.environ, "PATH": tools + ":" + os.environ.get("PATH", "")}
    done = subprocess.run([os.path.join(tools, "cuobjdump"), "-sass", path], capture_output=True, text=True, env=env,
                          check=True)
    return kernels(done.stdout)


# What the compiler made of relu, of -x and of halves before it was told better.
PLANTED = """
#include <cuda_fp16.h>
#include <stdint.h>
struct relu_of {}; struct cairn__f16 { uint16_t bits; };
template <class T, class F> __global__ void map_tensor(T *dst, const T *x) {
    const size_t i = blockIdx.x * 256 + threadIdx.x;
    if (sizeof(T) == 4) ((float *)dst)[i] = ((const float *)x)[i] <= 0 ? 0 : ((const float *)x)[i];
    else ((__half *)dst)[i] = __float2half_rn(fabsf(__half2float(((const __half *)x)[i])));
}
template __global__ void map_tensor<float, relu_of>(float *, const float *);
template __global__ void map_tensor<cairn__f16, relu_of>(cairn__f16 *, const cairn__f16 *);
__global__ void map_packsIL12cairn__map_fn2E(float *dst, const float *x) { dst[threadIdx.x] = -x[threadIdx.x]; }
"""


def check_the_check(tools, maps):
    """Three planted kernels are found, for each chip that the module may be built for."""
    for chip in "80", "90":
        with tempfile.TemporaryDirectory() as folder:
            source, cubin = os.path.join(folder, "planted.cu"), os.path.join(folder, "planted.cubin")
            with open(source, "w", encoding="ascii") as f:
                f.write(PLANTED)
            subprocess.run([sys.argv[2], "-std=c++17", "-O3", "--fmad=false", "-arch=sm_" + chip, "-cubin", source,
                            "-o", cubin], check=True)
            found = disassembled(tools, cubin)
        blamed = {name for name, code in found if kept_as(name, maps) for _ in complaints(name, code)}
        assert len(found) == 3 and len(blamed) == 3, (chip, found, blamed)


def main():
    tools = find_tools()
    if not tools:
        print("there is no cuobjdump with an nvdisasm beside it (toolkit, or pip's nvidia-cuda-cuobjdump and "
              "nvidia-cuda-nvdisasm), so no machine code was read")
        sys.exit(sources.SKIP)
    maps = re.findall(r"^ *X\((\w+), \d,", sources.read("", sys.argv[1]), re.M)
    assert set(KEEPING_MAPS) < set(maps) and maps[0] == "COPY"
    check_the_check(tools, maps)
    every = [kernel for path in sys.argv[3:] for kernel in disassembled(tools, path)]
    keeping = [kernel for kernel in every if kept_as(kernel[0], maps)]
    problems = [line for kernel in keeping for line in complaints(*kernel)]
    missing = {*KEEPING, *KEEPING_MAPS} - {kept_as(name, maps) for name, _ in keeping}
    problems += [f"{what}: there is no such kernel any more; bring the lists of this check up to date"
                 for what in sorted(missing)]
    print(f"{len(keeping)} of {len(every)} kernels keep bits")
    sources.finish(problems, "sass")


if __name__ == "__main__":
    main()
