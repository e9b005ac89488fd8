/* cairn-lab: experiments about loss scaling and half types, and recorded trainings, as numbers and pictures.
 *
 *   experiment   interface of experiments        result       tables and findings of one
 *   experiments  the list of experiments         store        results as files, with their description
 *   run          options, and one run            page         the report, with figures by chart
 *   commands     list, run and report            trained      what CAIRN_LAB=folder recorded, as a result */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "../common/say.h"
#include "cairn/version.h"
#include "core/nearest.h"

const char program_name[] = "cairn-lab";

static const char usage[] =
    "usage: cairn-lab list [NAME]                          experiments, or one of them with its options\n"
    "       cairn-lab run NAME [--OPTION VALUE]...         runs an experiment\n"
    "       cairn-lab run all                              runs all that are not complete yet\n"
    "       cairn-lab report [FOLDER]                      FOLDER/report.html of all results in the folder\n"
    "\n"
    "FOLDER is lab, or what a training wrote with CAIRN_LAB=FOLDER.\n"
    "\n"
    "options of run, besides those of the experiment:\n"
    "  --out FOLDER   results are FOLDER/NAME/*.csv and result.json; lab\n"
    "  --seed N       all random numbers follow from it; 1\n"
    "  --again        runs what is complete, too\n"
    "  --help, --version\n"
    "\n"
    "Exit code: 0; 1 where an experiment failed, or what it expects does not hold; 2 for wrong use.\n";

static const struct command {
    const char *name;
    int (*start)(int argc, char **argv); /* argv[0] is the command */
} commands[] = {{"list", command_list}, {"run", command_run}, {"report", command_report}};

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "--help";
    struct cairn__nearest nearest = {.written = name};
    if (strcmp(name, "--version") == 0) {
        printf("cairn-lab %d.%d.%d\n", CAIRN_VERSION_MAJOR, CAIRN_VERSION_MINOR, CAIRN_VERSION_PATCH);
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) return fputs(usage, stdout) < 0;
    }
    if (argc < 2) return fputs(usage, stderr), WRONG_USE;
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(commands[i].name, name) == 0) return commands[i].start(argc - 1, argv + 1);
        cairn__nearest_try(&nearest, commands[i].name);
    }
    if (nearest.name) refuse("there is no command '%s'; did you mean '%s'?", name, nearest.name);
    else refuse("there is no command '%s'; cairn-lab --help lists them", name);
    return WRONG_USE;
}
