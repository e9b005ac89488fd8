/* Includes the quick start's source, as a rank that test_faults.py disturbs: in attempts below FAULTY_ATTEMPTS it
 * trains forever, in later ones as its arguments say; SIGUSR1 makes it exit without a message. */
#define main train
static int train(int argc, char **argv);
#include "../../examples/01_linear_regression.c"
#undef main

#include <signal.h>
#include <stdbool.h>

static void leave(int number) {
    (void)number;
    _exit(9);
}

static int number_of(const char *variable) {
    const char *text = getenv(variable);
    return text ? atoi(text) : 0;
}

int main(int argc, char **argv) {
    static char program[] = "faulty_quickstart", option[] = "--steps", steps[] = "1000000000";
    char *endless[] = {program, option, steps, NULL}, **arguments = endless;
    (void)signal(SIGUSR1, leave);
    const int attempt = number_of("TORCHELASTIC_RESTART_COUNT");
    const bool is_endless = attempt < number_of("FAULTY_ATTEMPTS");
    if (!is_endless) arguments = argv;
    const int code = train(is_endless ? 3 : argc, arguments);
    if (code == 0 && number_of("RANK") == 0) printf("attempt %d trained\n", attempt);
    return code;
}
