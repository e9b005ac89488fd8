# shellcheck shell=bash disable=SC2034

# Sourced by quickstart and check: the packages that they install, and how they build.

# Each row: a package, a command that succeeds if it is installed, and its purpose.
PACKAGES_TO_BUILD=(
    "gcc            | command -v gcc                     | compiles Cairn"
    "libc6-dev      | has_header stdlib.h                | the C library's headers"
    "meson          | command -v meson                   | sets up the build"
    "ninja-build    | command -v ninja                   | runs the build"
    "pkg-config     | command -v pkg-config              | finds libraries"
    "python3        | command -v python3                 | meson and the tests run on it"
    "libjansson-dev | has_header jansson.h               | cairn-run reads the error files of ranks"
    "libxxhash-dev  | has_header xxhash.h                | checksums of checkpoints and weights files"
    "libsodium-dev  | has_header sodium.h                | job secrets, for ranks on several machines"
    "libjpeg62-turbo-dev | has_header jpeglib.h        | JPEG, for training on pictures"
    "libpng-dev     | has_header png.h                   | PNG, for training on pictures"
    "libdnnl-dev    | has_header oneapi/dnnl/dnnl.h      | oneDNN, matrix products on the CPU"
)
PACKAGES_TO_CHECK=(
    "libcmocka-dev  | pkg-config --exists cmocka         | the unit tests' framework"
    "libutf8proc-dev | has_header utf8proc.h             | Unicode, for the tokenizer of examples/bert"
    "clang          | command -v clang                   | the second compiler"
    "libclang-rt-dev | clang -fsanitize=address -x c -o /dev/null - <<<'int main(void) { return 0; }' | its sanitizers"
    "g++            | command -v g++                     | compiles the public headers as C++"
    "libgloo-dev    | test -e /usr/include/gloo/context.h | groups of ranks on several machines"
    "libopenmpi-dev | pkg-config --exists ompi-c         | groups of ranks that mpirun or srun starts"
    "libpmix-dev    | pkg-config --exists pmix           | a job's secret through the launcher of its ranks"
    "clang-format   | command -v clang-format            | checks the layout of the sources"
    "shellcheck     | command -v shellcheck              | checks the scripts"
    "cmake          | command -v cmake                   | finds the installed library as its users' projects do"
    "doxygen        | command -v doxygen                 | makes HTML of the public headers"
    "chromium       | command -v chromium                | shows cairn-lab's report to its test"
    "mandoc         | command -v mandoc                  | checks the manual pages"
    "binutils       | command -v nm                      | lists what the libraries export"
    "git            | command -v git                     | lists the project's files"
    "gcc-aarch64-linux-gnu | command -v aarch64-linux-gnu-gcc | compiles for a processor without AVX"
    "libc6-dev-arm64-cross | test -e /usr/aarch64-linux-gnu/include/stdlib.h | the C library for it"
    "python3-sklearn | test -e /usr/lib/python3/dist-packages/sklearn/datasets/data/digits.csv.gz | handwritten digits"
    "qemu-user      | command -v qemu-aarch64            | runs what was compiled for it"
    "iproute2       | command -v ip                      | makes networks for the tests' own machines"
    "openmpi-bin    | command -v mpirun                  | starts ranks as its users do"
    "mpich          | command -v mpiexec.hydra           | starts ranks in another way"
    "slurm-wlm      | test -x /usr/sbin/slurmctld        | starts ranks, from daemons that the tests start themselves"
    "munge          | test -x /usr/sbin/munged           | by which these know each other"
)
# The services that the packages above would start, now and at boot.
UNWANTED_SERVICES=(munge slurmctld slurmd)

say() { printf '%s\n' "$*"; }

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

has_header() { printf '#include <%s>\n' "$1" | gcc -E -x c - >/dev/null; }

trim() { sed 's/^ *//; s/ *$//' <<<"$1"; }

# install_missing ROW...: installs the packages of those rows whose command fails.
install_missing() {
    local row package present why missing=()
    for row in "$@"; do
        IFS='|' read -r package present why <<<"$row"
        if ! eval "$present" >/dev/null 2>&1; then
            [[ ${#missing[@]} -gt 0 ]] || say "Missing on this machine:"
            package=$(trim "$package")
            missing+=("$package")
            say "  $package: $(trim "$why")"
        fi
    done
    [[ ${#missing[@]} -eq 0 ]] || apt_install "${missing[@]}"
}

# The services of the list that are there, one a line.
services() {
    local service
    for service in "${UNWANTED_SERVICES[@]}"; do
        [[ ! -e /etc/init.d/$service ]] || say "$service"
    done
}

# turn_off SERVICE COMMAND...: with COMMAND (sudo) in front of what starts services on this machine.
turn_off() {
    local service=$1
    shift
    if command -v systemctl; then
        "$@" systemctl disable --now "$service"
    else
        "$@" invoke-rc.d "$service" stop
        "$@" update-rc.d "$service" disable
    fi >/dev/null 2>&1 || true # in a chroot nothing runs
}

apt_install() {
    command -v apt-get >/dev/null ||
        die "this machine has no apt-get; install the packages above with what it has, then run this again"
    local as_root=()
    if [[ $EUID -ne 0 ]]; then
        command -v sudo >/dev/null ||
            die "installing needs root, and there is no sudo; as root: apt-get install $*"
        as_root=(sudo)
        [[ -t 0 ]] || as_root+=(-n) # there is no terminal for a password
    fi
    local log before service
    log=$(mktemp)
    before=$(services)
    say "Installing with apt-get ..."
    # A stale index may still do; only a failed installation is an error.
    if ! { "${as_root[@]}" apt-get update -q || true
           "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
         } >"$log" 2>&1 </dev/null; then
        tail -n 15 "$log" >&2
        rm -f "$log"
        die "apt-get could not install $* (is there a network, and may this user install?)"
    fi
    rm -f "$log"
    for service in $(services | grep -vxF -e "$before"); do
        turn_off "$service" "${as_root[@]}"
    done
}

# quietly LOG COMMAND...: runs it with its output in LOG, and shows the end of LOG on failure.
quietly() {
    local log=$1
    shift
    mkdir -p "$(dirname "$log")"
    "$@" >"$log" 2>&1 </dev/null && return
    say "failed: $*"
    tail -n 40 "$log"
    say "(all of it: $log)"
    return 1
}

# build_in DIR [TARGET...] -- MESON_OPTION...: sets DIR up unless that was done, and builds the targets, or everything.
build_in() {
    local dir=$1 targets=()
    shift
    while [[ $1 != -- ]]; do
        targets+=("$1")
        shift
    done
    shift
    if [[ ! -e $dir/build.ninja ]]; then
        quietly "$dir/setup.log" meson setup "$@" "$dir" || return 1
    fi
    quietly "$dir/build.log" ninja -C "$dir" "${targets[@]}"
}
