"""`python -m scaling` is the `scaling` command."""

if __name__ == "__main__":
    from scaling.import_path import working_folder_last

    working_folder_last()  # before all else is imported

    from scaling.cli import main

    main()
