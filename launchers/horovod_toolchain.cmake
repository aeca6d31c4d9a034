# Has CMake compile Horovod 0.28.1 as C++17, which torch's headers need: its own files ask for C++14, and no flag
# of the command line comes after theirs. This file is read before project() and, named by CMAKE_PROJECT_INCLUDE,
# again right after it, when CMake has set the variables below; then "-std=c++14" stands for C++17 everywhere.
set(CMAKE_PROJECT_INCLUDE "${CMAKE_CURRENT_LIST_FILE}" CACHE FILEPATH "" FORCE)
set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "-std=c++17")
set(CMAKE_CXX14_EXTENSION_COMPILE_OPTION "-std=gnu++17")
# CMake's own value adds 60 MB of debug data.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -DNDEBUG" CACHE STRING "" FORCE)
# Headers that its C++ files use without including them: from g++ 13 on, the other headers no longer bring them.
# CMake puts this after the CXXFLAGS of the environment; C and CUDA sources have flags of their own (CUDA's stay
# at C++11, which nvcc 13 still takes).
set(CMAKE_CXX_FLAGS_INIT "-include cstdint -include stdexcept -include string")
