# Times PyTorch's products of the same sizes: the median of runs over rotated operands, as a JSON line per product.
import json, statistics, sys, torch
torch.manual_seed(0)
D={"BFloat16":torch.bfloat16,"Half":torch.half,"tf32":torch.float32,"float":torch.float32}
l2=50<<20
for line in open("products.csv"):
    op,params=line.strip().split(",")
    kind,t,_=op.split("_")
    w=params.split("_"); lay=w[0]; n,m,k=map(int,w[1:4])
    torch.backends.cuda.matmul.allow_tf32 = t=="tf32"
    dt=D[t]; ta,tb=lay[1]=="t",lay[0]=="t"
    bytes_=(m*k+k*n+m*n)*dt.itemsize
    sets=max(1,-(-l2//bytes_))
    S=[]
    for _ in range(sets):
        a=torch.rand((k,m) if ta else (m,k),device="cuda").mul_(2).sub_(1).to(dt); a=a.t() if ta else a
        b=torch.rand((n,k) if tb else (k,n),device="cuda").mul_(2).sub_(1).to(dt)
        bias=torch.rand(n,device="cuda").to(dt) if "Bias" in kind else None
        S.append((a,b,bias))
    def run(i):
        a,b,bias=S[i%sets]
        if bias is not None: return torch.nn.functional.linear(a,b,bias)
        return a@(b.t() if tb else b)
    for i in range(3): run(i)
    torch.cuda.synchronize()
    s,e=torch.cuda.Event(enable_timing=True),torch.cuda.Event(enable_timing=True)
    s.record(); run(0); e.record(); torch.cuda.synchronize()
    calls=int(min(32,max(1,0.05/max(s.elapsed_time(e),1e-4))))
    times=[]
    reps=int(min(100,max(5,30/max(s.elapsed_time(e)*calls,1e-3))))
    i=0
    for _ in range(reps):
        s.record()
        for _ in range(calls): run(i); i+=1
        e.record(); torch.cuda.synchronize(); times.append(s.elapsed_time(e)/calls)
    print(json.dumps({"operator":op,"parameters":params,"milliseconds":statistics.median(times)}),flush=True)
    del S; torch.cuda.empty_cache()
