"""`python -m kerntree`: the command line."""

from kerntree.search.cli import main

if __name__ == "__main__":
    main()
