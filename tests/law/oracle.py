def assert_as_in_plain_python(case, alone):
    return
