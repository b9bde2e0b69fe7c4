// Runs an optimized model once: dotnet run -- MODEL.onnx PATH/libmirage_onnx_ops.so [--cuda]
//
// Inputs are small numbers of every type that a model of transformers takes; a dynamic dimension becomes 8.
// The two lines that are about mirage-onnx are marked.
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
        using (var options = new SessionOptions())
        {
            if (args.Contains("--cuda"))
                options.AppendExecutionProvider_CUDA(0);
            else
                options.AddSessionConfigEntry("ai.mirage.ep", "none"); // mirage-onnx: run the function bodies
            options.RegisterCustomOpLibrary(args[1]); // mirage-onnx: after the config entries
            using (var session = new InferenceSession(args[0], options))
            {
                var inputs = session.InputMetadata.Select(pair => Drawn(pair.Key, pair.Value)).ToList();
                using (var results = session.Run(inputs))
                    foreach (var result in results)
                        Console.WriteLine($"{result.Name} {Told(result)}");
            }
        }
        return 0;
    }

    private static NamedOnnxValue Drawn(string name, NodeMetadata about)
    {
        var dims = about.Dimensions.Select(d => d < 0 ? 8 : d).ToArray();
        var signed = Enumerable.Range(0, dims.Aggregate(1, (a, b) => a * b)).Select(i => i % 7 - 3).ToArray();
        var counts = signed.Select(i => i + 3);
        switch (about.ElementDataType)
        {
            case TensorElementType.Float: return Tensor(name, dims, signed.Select(i => (float)i).ToArray());
            case TensorElementType.Float16: return Tensor(name, dims, signed.Select(i => (Float16)(float)i).ToArray());
            case TensorElementType.BFloat16: return Tensor(name, dims, signed.Select(i => (BFloat16)(float)i).ToArray());
            case TensorElementType.Int64: return Tensor(name, dims, counts.Select(i => (long)i).ToArray());
            case TensorElementType.Int32: return Tensor(name, dims, counts.ToArray());
            case TensorElementType.Bool: return Tensor(name, dims, counts.Select(i => i != 0).ToArray());
            default: throw new NotSupportedException($"{name}: {about.ElementDataType}");
        }
    }

    private static NamedOnnxValue Tensor<T>(string name, int[] dims, T[] data)
    {
        return NamedOnnxValue.CreateFromTensor(name, new DenseTensor<T>(data, dims));
    }

    private static string Told(DisposableNamedOnnxValue result)
    {
        switch (result.ElementType)
        {
            case TensorElementType.Float: return Summed(result.AsTensor<float>(), x => x);
            case TensorElementType.Float16: return Summed(result.AsTensor<Float16>(), x => x.ToFloat());
            case TensorElementType.BFloat16: return Summed(result.AsTensor<BFloat16>(), x => x.ToFloat());
            case TensorElementType.Int64: return Summed(result.AsTensor<long>(), x => x);
            default: return result.ElementType.ToString();
        }
    }

    private static string Summed<T>(Tensor<T> tensor, Func<T, double> number)
    {
        return $"{string.Join("x", tensor.Dimensions.ToArray())} {tensor.Sum(number):R}";
    }
}
