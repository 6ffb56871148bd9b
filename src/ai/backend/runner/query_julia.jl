# Runs the snippets of query mode in one Julia. Descriptor 62 brings requests, 63 takes reports, framed as in
# framing.py: kind (1 byte), length (4 bytes, big endian), fields of a length and bytes each. No real Julia has run it.
module BackendaiQuery

const REQUESTS = open("/proc/self/fd/62", "r")
const REPORTS = open("/proc/self/fd/63", "w")

sized(bytes) = vcat(reinterpret(UInt8, [hton(UInt32(length(bytes)))]), bytes)

function report(kind, texts...)
    fields = UInt8[]
    for text in texts
        append!(fields, sized(Vector{UInt8}(codeunits(String(text)))))
    end
    write(REPORTS, vcat(UInt8(kind), sized(fields)))
    flush(REPORTS)
end

read_number() = Int(ntoh(read(REQUESTS, UInt32)))
read_field() = String(read(REQUESTS, read_number()))

function fail(error)
    text = sprint(showerror, error)
    println(stderr, "ERROR: ", text)
    report('X', text, string(nameof(typeof(error))), text)
end

function run(code)
    try
        value = Base.include_string(Main, code, "input")
        if value !== nothing && !endswith(rstrip(code), ';')
            show(stdout, MIME("text/plain"), value)
            println(stdout)
        end
    catch error
        fail(error isa LoadError ? error.error : error)
    end
end

function serve()
    Base.exit_on_sigint(false)  # an interrupt ends the snippet alone
    report('H', string(VERSION))
    report('S')
    while true
        local number, code
        try
            read(REQUESTS, UInt8)
            read_number()
            number = read_field()
            code = read_field()
        catch error
            error isa InterruptException && continue
            return
        end
        run(code)
        flush(stdout)
        flush(stderr)
        report('D', number)
    end
end

end

BackendaiQuery.serve()
