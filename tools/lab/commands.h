/* The commands of cairn-lab. Each returns the program's exit code. */
#ifndef LAB_COMMANDS_H
#define LAB_COMMANDS_H

enum { FAILED = 1, WRONG_USE = 2 };

int command_list(int argc, char **argv);
int command_run(int argc, char **argv);
int command_report(int argc, char **argv);

#endif
