// Runs an optimized model once: dotnet run -- MODEL.onnx PATH/libmirage_onnx_ops.so [--cuda]
//
// One float input of any shape is enough for a start; the two lines that are about mirage-onnx are marked.
using System;
using System.Linq;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;

internal static class Program
{
    private static int Main(string[] args)
    {
        if (args.Length < 2)
        {
            Console.Error.WriteLine("usage: RunModel MODEL.onnx libmirage_onnx_ops.so [--cuda]");
            return 2;
        }
        using var options = new SessionOptions();
        if (args.Contains("--cuda"))
            options.AppendExecutionProvider_CUDA(0);
        else
            options.AddSessionConfigEntry("ai.mirage.ep", "none"); // mirage-onnx: run the function bodies
        options.RegisterCustomOpLibrary(args[1]); // mirage-onnx: after the config entries
        using var session = new InferenceSession(args[0], options);

        var inputs = session.InputMetadata.Select(pair =>
        {
            var dims = pair.Value.Dimensions.Select(d => d < 0 ? 8 : d).ToArray();
            var data = Enumerable.Range(0, dims.Aggregate(1, (a, b) => a * b)).Select(i => (float)(i % 7 - 3));
            return NamedOnnxValue.CreateFromTensor(pair.Key, new DenseTensor<float>(data.ToArray(), dims));
        }).ToList();
        using var results = session.Run(inputs);
        foreach (var result in results)
        {
            var tensor = result.AsTensor<float>();
            Console.WriteLine($"{result.Name} {string.Join("x", tensor.Dimensions.ToArray())} {tensor.Sum()}");
        }
        return 0;
    }
}
