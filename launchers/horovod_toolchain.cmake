# Has CMake compile Horovod 0.28.1 as C++17, which torch's headers need: its own files ask for C++14, and no flag
# of the command line comes after theirs. This file is read before project() and, named by CMAKE_PROJECT_INCLUDE,
# again right after it, when CMake has set the variables below; then "-std=c++14" stands for C++17 everywhere.
set(CMAKE_PROJECT_INCLUDE "${CMAKE_CURRENT_LIST_FILE}" CACHE FILEPATH "" FORCE)
set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "-std=c++17")
set(CMAKE_CXX14_EXTENSION_COMPILE_OPTION "-std=gnu++17")
# The same for its CUDA kernels, which ask for C++11.
set(CMAKE_CUDA11_STANDARD_COMPILE_OPTION "-std=c++17")
set(CMAKE_CUDA11_EXTENSION_COMPILE_OPTION "-std=c++17")
# CMake's own value adds 60 MB of debug data.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -DNDEBUG" CACHE STRING "" FORCE)
