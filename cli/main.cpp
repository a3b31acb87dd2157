#include "program.hpp"

int main(int argc, char** argv) { return headrace::cli::run_program(argc, argv); }
