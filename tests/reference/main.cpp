namespace reference {
int run(int argc, char** argv);  // run.cpp
}

int main(int argc, char** argv) {
    return reference::run(argc, argv);
}
